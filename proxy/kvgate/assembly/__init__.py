"""The parts of a process put together, and kept as the policy says while it runs.

`pools` makes one line of ledger, engines and admission for each pool. `keeper` follows the policy file and what
operators change at run time, and tells the parts; `shared` is where such changes are kept for all processes, `drains`
those of engines; `desk` is what the admin port asks of all that.
"""
