"""The commands of ``keras-mp``, one module each; ``cli.py`` finds them by looking in here.

A command is a module ``<name>.py`` here with

    HELP = "one line for keras-mp --help"

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    def run(args: argparse.Namespace) -> int: ...      # the exit status

Its module is imported for every call of ``keras-mp``, so it imports what it needs inside ``run``.
``_`` in a module's name becomes ``-`` in the command's; a module that begins with ``_`` is none.
"""
