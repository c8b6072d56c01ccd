"""HTTP: routes, the table from exception to Problem, the gate in front of both, and the server process."""
