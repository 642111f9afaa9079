"""The command line `partir`, with a file for each subcommand."""
