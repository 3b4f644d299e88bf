"""The Python of the README runs."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_python_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert "designed" in capsys.readouterr().out
