"""The room that sees both Brain and Hands: the command line and the one-process host."""
