"""One data set or client format a file; each gives `MeasuredRun`s."""
