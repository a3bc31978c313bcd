"""The pages, one a file. Each exports ``VIEW``; none imports another."""
