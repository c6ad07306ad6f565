"""The one exception for bad input: its text is all that a user sees of it."""


class UserError(Exception):
    """Something outside the program is wrong: a file, a setting, the machine.

    The message names the file, line or layer and the remedy. The command line prints it
    without a traceback and exits with 1.
    """
