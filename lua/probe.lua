-- Runs each command of the other scripts on a key without an account, so that a missing permission is
-- an error at the start. Leaves no key behind.
local call, key = redis.call, KEYS[1]
call('TIME')
call('PSETEX', key, 1000, '')
call('GET', key)
call('MGET', key)
call('EXISTS', key)
call('PTTL', key)
call('PEXPIRE', key, 1000)
call('DEL', key)

call('RPUSH', key, 'a', 'b')
call('LINDEX', key, 0)
call('LRANGE', key, 0, -1)
call('LSET', key, 0, 'a')
call('LPOP', key)
call('LREM', key, 1, 'b')

call('ZADD', key, 0, 'a')
call('ZRANGE', key, 0, -1)
call('ZCARD', key)
call('ZCOUNT', key, 0, 0)
call('ZMSCORE', key, 'a')
call('ZREM', key, 'a')
