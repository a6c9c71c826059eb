"""`python -m nerve.deploy`: the same command as `nerve`."""

from nerve.deploy.cli import main

main()
