-- Main part for one request: charges all accounts or none.
--
-- KEYS: the accounts, then their logs, sets of slots and marks. ARGV: a plan for each account.
return struct.pack('<I7H', now, nano) .. answer(decide(KEYS, ARGV, plans, 1))
