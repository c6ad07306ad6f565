"""Communication: collectives, designs, scaling, parameter servers, ranks on a GPU."""
