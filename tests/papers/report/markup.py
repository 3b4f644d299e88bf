"""Reading the page as a browser does, as far as tests need."""

from html.parser import HTMLParser

_VOID = {"meta", "img", "br", "wbr", "link", "path", "input", "hr"}


class Markup(HTMLParser):
    """Every start tag with its attributes, the visible words, and `errors` of nesting."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.errors, self._open = [], [], [], []
        self.feed(text)
        self.errors += [f"<{tag}> is never closed" for tag in self._open]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.errors.append(f"</{tag}> at {self.getpos()} closes nothing")

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag, **attributes):
        return [found for name, found in self.tags if name == tag and attributes.items() <= found.items()]
