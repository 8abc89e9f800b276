"""What is kept of runs, compared and drawn; what the papers print."""
