"""`python -m notsodeep.cli`."""

from notsodeep.cli import main

main()
