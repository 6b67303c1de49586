"""A scenario: what it may say (sections), and how it is read, written and taken from an engine's command line."""
