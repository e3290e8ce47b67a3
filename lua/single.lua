-- Main part for one request: charges all accounts or none.
--
-- KEYS: the accounts, then the lists of their sliding logs. ARGV: a plan for each account.
local passed, accounts = decide(KEYS, ARGV, plans, 1)
return answer(passed > 0, accounts)
