"""The definition of a query, which is kept with its checkpoint and compared before a query continues.

definition                 describe a query; read and write its description
differences, state_types   compare two definitions in words; the types of an operator's state
plan_steps, window_words   describe what Spark computes, from its plan; windows in words
code_prints                tell whether a user's function or aggregate has changed
"""
