"""What people look at: figures and pages made from result files."""
