"""Decide, and work out what that owes: every collective, with its place, kind and axes.

In the order of the work, each line reading those before it:

indices, rule, tables, table_builder    the program as numbered rows and values
atoms, classes, groups, structure       what can be split, and what is split together; found once for a program
actions, claims, constraints, winners   what was asked for, and who has each axis at each op
assignment, roles, scopes               all of that for one sequence of actions; what tactics ask
propagation, unreduced, scattering      how axes spread to values; where sums are reduced, and how
layout, boundary, reshard, plan         how values lie, and every collective that is owed
folded                                  the same on a program with its repeated parts taken once
"""
