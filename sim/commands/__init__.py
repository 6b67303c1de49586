"""Commands of `servetwin`: from arguments to a question, and from its answer to text and files."""
