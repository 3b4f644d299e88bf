"""Linear algebra on matrices that are never formed: operators, solvers, eigenpairs, densities."""
