"""A flag before a flag file that sets it too would be lost in silence."""

from absl import app, flags


def check_flag_order(argv, define, read):
    """Refuses a command line whose flag files change flags before them.

    Args:
        argv: The command line.
        define: Defines the flags, in the `flags.FlagValues` that it is given.
        read: From parsed values to named tuples of what was set.

    Raises:
        app.UsageError: If with all flag files first it would mean something
            else.
    """
    files, others = [], []
    parts = iter(argv[1:])
    for part in parts:
        name, sign, _ = part.lstrip("-").partition("=")
        if name != "flagfile":
            others.append(part)
        else:
            files += [part] if sign else [part, next(parts)]
    meant = [argv[0], *files, *others]
    if meant == list(argv):
        return
    for got, wanted in zip(
        _parsed(argv, define, read), _parsed(meant, define, read), strict=True
    ):
        for name in got._fields:
            one, other = getattr(got, name), getattr(wanted, name)
            if one != other:
                raise app.UsageError(
                    f"`--{name}` must come after the flag files, which set it "
                    "too: the last one counts. Received: "
                    f"--{name}={other} before a flag file with "
                    f"--{name}={one}"
                )


def _parsed(argv, define, read):
    values = flags.FlagValues()
    define(values)
    values(argv, known_only=True)
    return read(values)
