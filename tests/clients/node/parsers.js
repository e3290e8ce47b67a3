// Parsers of header fields read the original numbers from every answer of the corpus.

import { parseRateLimit } from 'ratelimit-header-parser';
import { parseDictionary, parseList } from 'structured-headers';

import { check, server } from './report.js';

const cases = await (await fetch(`${server}/corpus`)).json();
for (const [n, sample] of cases.entries()) {
  const answer = await fetch(`${server}/corpus/${n}`);
  sample.headers = answer.headers;
  if (answer.status !== sample.status) throw new Error(`case ${n}: ${answer.status}`);
}

const same = (read, meant) => JSON.stringify(read) === JSON.stringify(meant);

/** Checks `reads` on every case of this family. */
async function all(client, family, expected, reads) {
  await check(`${client}: ${family}`, expected, () => {
    const asked = cases.filter((sample) => sample.family === family);
    const wrong = asked.filter((sample) => !reads(sample));
    const worst = wrong.length ? `: ${JSON.stringify([...wrong[0].headers])}` : '';
    const happened = `${asked.length - wrong.length} of ${asked.length}${worst}`;
    return { happened, ok: asked.length >= 10 && wrong.length === 0 };
  });
}

const NUMBERS = 'the numbers of every field';
const list = (sample, name) => parseList(sample.headers.get(name));

await all('structured-headers', 'ratelimit', NUMBERS, (sample) => {
  const item = ([name, parameters]) => ({ name, ...Object.fromEntries(parameters) });
  const limits = sample.limits.map(({ name, r, t }) => (t === null ? { name, r } : { name, r, t }));
  return (
    same(list(sample, 'ratelimit-policy').map(item), sample.policies) &&
    same(list(sample, 'ratelimit').map(item), limits)
  );
});

const policies = (sample) =>
  same(
    list(sample, 'ratelimit-policy').map(([q, parameters]) => [q, parameters.get('w')]),
    sample.policies.map(({ q, w }) => [q, w]),
  );
const numbers = ({ policies: [{ q }], limits: [{ r, t }] }) => [q, r, t ?? 0];

await all('structured-headers', 'draft07', NUMBERS, (sample) => {
  const fields = parseDictionary(sample.headers.get('ratelimit'));
  const read = ['limit', 'remaining', 'reset'].map((name) => fields.get(name)[0]);
  return policies(sample) && same(read, numbers(sample));
});
await all('structured-headers', 'draft06', NUMBERS, policies);

for (const family of ['draft07', 'draft06', 'x', 'x-delta']) {
  await all('ratelimit-header-parser', family, NUMBERS, (sample) => {
    const [limit, remaining, seconds] = numbers(sample);
    const read = parseRateLimit(sample.headers);
    // Unix time refers to the time of the answer.
    const from = family === 'x' ? sample.made : Date.now() / 1000;
    const off = read.reset.getTime() / 1000 - from - seconds;
    return read.limit === limit && read.remaining === remaining && off > -2 && off <= 2;
  });
}
await all('ratelimit-header-parser', 'ratelimit', 'NaN, as is known', (sample) => {
  const read = parseRateLimit(sample.headers);
  return Number.isNaN(read.limit) && Number.isNaN(read.remaining);
});
