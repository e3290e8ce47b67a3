// Parsers of header fields read, in every answer of the corpus, the numbers it was made from.

import { parseRateLimit } from 'ratelimit-header-parser';
import { parseDictionary, parseList } from 'structured-headers';

import { check, server } from './report.js';

const cases = await (await fetch(`${server}/corpus`)).json();
for (const [n, told] of cases.entries()) {
  const answer = await fetch(`${server}/corpus/${n}`);
  told.headers = answer.headers;
  if (answer.status !== told.status) throw new Error(`case ${n}: ${answer.status}`);
}

const same = (read, meant) => JSON.stringify(read) === JSON.stringify(meant);

/** Checks `reads` on every case of this family. */
async function all(client, family, expected, reads) {
  await check(`${client}: ${family}`, expected, () => {
    const asked = cases.filter((told) => told.family === family);
    const wrong = asked.filter((told) => !reads(told));
    const worst = wrong.length ? `: ${JSON.stringify([...wrong[0].headers])}` : '';
    const happened = `${asked.length - wrong.length} of ${asked.length}${worst}`;
    return { happened, ok: asked.length >= 10 && wrong.length === 0 };
  });
}

const NUMBERS = 'the numbers of every field';
const list = (told, name) => parseList(told.headers.get(name));

await all('structured-headers', 'draft11', NUMBERS, (told) => {
  const item = ([name, parameters]) => ({ name, ...Object.fromEntries(parameters) });
  const limits = told.limits.map(({ name, r, t }) => (t === null ? { name, r } : { name, r, t }));
  return (
    same(list(told, 'ratelimit-policy').map(item), told.policies) &&
    same(list(told, 'ratelimit').map(item), limits)
  );
});

const policies = (told) =>
  same(
    list(told, 'ratelimit-policy').map(([q, parameters]) => [q, parameters.get('w')]),
    told.policies.map(({ q, w }) => [q, w]),
  );
const numbers = ({ policies: [{ q }], limits: [{ r, t }] }) => [q, r, t ?? 0];

await all('structured-headers', 'draft07', NUMBERS, (told) => {
  const fields = parseDictionary(told.headers.get('ratelimit'));
  const read = ['limit', 'remaining', 'reset'].map((name) => fields.get(name)[0]);
  return policies(told) && same(read, numbers(told));
});
await all('structured-headers', 'draft06', NUMBERS, policies);

for (const family of ['draft07', 'draft06', 'x', 'x-delta']) {
  await all('ratelimit-header-parser', family, NUMBERS, (told) => {
    const [limit, remaining, seconds] = numbers(told);
    const read = parseRateLimit(told.headers);
    // Unix time is of when the answer was made
    const from = family === 'x' ? told.made : Date.now() / 1000;
    const off = read.reset.getTime() / 1000 - from - seconds;
    return read.limit === limit && read.remaining === remaining && off > -2 && off <= 2;
  });
}
await all('ratelimit-header-parser', 'draft11', 'NaN, as is known', (told) => {
  const read = parseRateLimit(told.headers);
  return Number.isNaN(read.limit) && Number.isNaN(read.remaining);
});
