"""Decide and spread: tables, atoms, classes, actions, assignments, and the plan of what an assignment owes."""
