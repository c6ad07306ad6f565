"""The program, as for the tests of other commands."""

from tests.cli.conftest import cli as cli
from tests.cli.conftest import ready as ready
