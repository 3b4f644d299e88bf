"""For mkdocs: τ̃_l is a letter with a subscript. Its tilde is a character of its own, after which `_` would begin emphasis."""

from markdown import Extension, Markdown
from markdown.inlinepatterns import SimpleTextInlineProcessor
from mkdocs.config.defaults import MkDocsConfig

_BEFORE_EMPHASIS = 170  # and after code, which has 190


class Subscripts(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (markdown's name)
        pattern = SimpleTextInlineProcessor("([\u0300-\u036f]_)")
        md.inlinePatterns.register(pattern, "subscript", _BEFORE_EMPHASIS)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(Subscripts())
    return config
