-- The accounts of limits, and functions that decide on several of them in one call.
--
-- All times are nanoseconds since the Unix epoch, which fit into a bigint until the year 2262.
-- A plain UPDATE with a condition is not enough: under READ COMMITTED, two transactions may each see
-- the accounts as they were before the other. The functions lock the rows of all accounts before
-- they read the clock, in the order of the accounts, so that no two calls wait for each other.

BEGIN;
-- One process at a time.
SELECT pg_advisory_xact_lock(7812345);

-- A crash empties an unlogged table: at most one more burst for each key, once.
CREATE UNLOGGED TABLE IF NOT EXISTS sluice_accounts (
    account bytea PRIMARY KEY,
    -- GCRA: the instant at which the account is full. A window: its start. A block: its end.
    at bigint NOT NULL DEFAULT 0,
    -- The units charged in the window.
    count bigint NOT NULL DEFAULT 0,
    -- The last reset: earlier charges are not undone.
    reset_at bigint NOT NULL DEFAULT -1,
    -- From here on, the row says nothing. No index, so that an update can stay on its page.
    ends bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

-- The clock of the server, unless a test drives it.
CREATE OR REPLACE FUNCTION sluice_now(driven bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(driven, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000)
$$;

-- The row of an account, which is created and locked if it may change.
CREATE OR REPLACE FUNCTION sluice_row(wanted bytea, is_change boolean) RETURNS sluice_accounts
LANGUAGE plpgsql AS $$
DECLARE
    found_row sluice_accounts;
BEGIN
    IF NOT is_change THEN
        SELECT * INTO found_row FROM sluice_accounts WHERE account = wanted;
        IF NOT FOUND THEN
            found_row := (wanted, 0, 0, -1, 0);
        END IF;
        RETURN found_row;
    END IF;
    LOOP
        SELECT * INTO found_row FROM sluice_accounts WHERE account = wanted FOR UPDATE;
        IF FOUND THEN
            RETURN found_row;
        END IF;
        INSERT INTO sluice_accounts (account) VALUES (wanted) ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- The start of the window of an account. `kind` is g for GCRA, f for windows that are aligned to the
-- epoch, and a for those that start with their first charge.
CREATE OR REPLACE FUNCTION sluice_start(kind text, period bigint, state sluice_accounts, instant bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF kind = 'f' THEN
        RETURN instant - instant % period;
    END IF;
    IF kind = 'a' AND state.count > 0 AND instant < state.at + period THEN
        RETURN state.at;
    END IF;
    RETURN instant;
END
$$;

-- What is used of an account: units of the window, or under GCRA the nanoseconds until it is full.
CREATE OR REPLACE FUNCTION sluice_used(kind text, start bigint, state sluice_accounts, instant bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF kind = 'g' THEN
        RETURN greatest(state.at - instant, 0);
    END IF;
    RETURN CASE WHEN state.at = start THEN state.count ELSE 0 END;
END
$$;

CREATE OR REPLACE FUNCTION sluice_write(
    kind text, period bigint, start bigint, used bigint, wanted bytea, instant bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF kind = 'g' THEN
        UPDATE sluice_accounts SET at = instant + used, ends = greatest(ends, instant + used)
        WHERE account = wanted;
    ELSE
        UPDATE sluice_accounts SET at = start, count = used, ends = greatest(ends, start + period)
        WHERE account = wanted;
    END IF;
END
$$;

-- Charges all accounts, or none. The accounts are in ascending order, each once. A need is the cost,
-- and what must be left beside it. Returns the accounts as they were before.
CREATE OR REPLACE FUNCTION sluice_take(
    accounts bytea[], kinds text[], periods bigint[], costs bigint[], needs bigint[], mosts bigint[],
    blocks bytea[], is_change boolean, driven bigint,
    OUT instant bigint, OUT is_allowed boolean, OUT starts bigint[], OUT used bigint[],
    OUT blocked_until bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    states sluice_accounts[];
BEGIN
    FOR i IN 1 .. cardinality(accounts) LOOP
        states[i] := sluice_row(accounts[i], is_change);
    END LOOP;
    instant := sluice_now(driven);
    is_allowed := true;
    FOR i IN 1 .. cardinality(blocks) LOOP
        blocked_until[i] := (sluice_row(blocks[i], false)).at;
        is_allowed := is_allowed AND blocked_until[i] <= instant;
    END LOOP;
    FOR i IN 1 .. cardinality(accounts) LOOP
        starts[i] := sluice_start(kinds[i], periods[i], states[i], instant);
        used[i] := sluice_used(kinds[i], starts[i], states[i], instant);
        is_allowed := is_allowed AND (needs[i] = 0 OR used[i] + needs[i] <= mosts[i]);
    END LOOP;
    IF NOT (is_allowed AND is_change) THEN
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(accounts) LOOP
        IF costs[i] > 0 THEN
            PERFORM sluice_write(
                kinds[i], periods[i], starts[i], used[i] + costs[i], accounts[i], instant
            );
        END IF;
    END LOOP;
END
$$;

-- Adds to what is used of the accounts, at most up to `mosts`, or subtracts from it. With the instant
-- of a charge, undoes it: what came back since then is not subtracted again.
CREATE OR REPLACE FUNCTION sluice_change(
    accounts bytea[], kinds text[], periods bigint[], changes bigint[], mosts bigint[],
    charged_at bigint, held_until bigint[], driven bigint,
    OUT instant bigint, OUT starts bigint[], OUT used bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    states sluice_accounts[];
    after bigint;
BEGIN
    FOR i IN 1 .. cardinality(accounts) LOOP
        states[i] := sluice_row(accounts[i], true);
    END LOOP;
    instant := sluice_now(driven);
    FOR i IN 1 .. cardinality(accounts) LOOP
        starts[i] := sluice_start(kinds[i], periods[i], states[i], instant);
        used[i] := sluice_used(kinds[i], starts[i], states[i], instant);
        after := used[i] + changes[i];
        IF changes[i] > 0 THEN
            after := greatest(used[i], least(after, mosts[i]));
        ELSIF charged_at IS NULL THEN
            after := greatest(after, 0);
        ELSIF states[i].reset_at >= charged_at THEN
            after := used[i];
        ELSIF kinds[i] = 'g' THEN
            after := greatest(held_until[i] - greatest(instant, charged_at), 0);
            after := greatest(used[i] - least(after, -changes[i]), 0);
        ELSE
            after := CASE WHEN charged_at < starts[i] THEN used[i] ELSE greatest(after, 0) END;
        END IF;
        IF after <> used[i] THEN
            PERFORM sluice_write(kinds[i], periods[i], starts[i], after, accounts[i], instant);
            used[i] := after;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION sluice_reset(accounts bytea[], driven bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. cardinality(accounts) LOOP
        PERFORM sluice_row(accounts[i], true);
        UPDATE sluice_accounts SET at = 0, count = 0, reset_at = sluice_now(driven)
        WHERE account = accounts[i];
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION sluice_block(block bytea, length bigint, driven bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO sluice_accounts (account, at, ends)
    SELECT block, until, until FROM (SELECT sluice_now(driven) + length AS until) AS new
    ON CONFLICT (account) DO UPDATE SET at = excluded.at, ends = excluded.ends
$$;

-- Deletes rows that say nothing any more, some at a time, and waits for none.
CREATE OR REPLACE FUNCTION sluice_sweep(driven bigint) RETURNS bigint LANGUAGE sql AS $$
    WITH ended AS (
        SELECT account FROM sluice_accounts WHERE ends <= sluice_now(driven)
        LIMIT 10000 FOR UPDATE SKIP LOCKED
    ), deleted AS (
        DELETE FROM sluice_accounts USING ended
        WHERE sluice_accounts.account = ended.account RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;
COMMIT;
