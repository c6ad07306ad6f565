"""The commands that read the logs of training runs: tables, plots, the HTML report."""
