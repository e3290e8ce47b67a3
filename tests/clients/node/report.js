// Helpers of the checks: a line of JSON for each, as tests/clients/main.rs reads them.

import { readFileSync } from 'node:fs';

export const server = process.env.SERVER;

export function version(name) {
  return JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8')).version;
}

/** Runs `act`, which returns what happened, and whether it was expected. */
export async function check(client, expected, act) {
  const name = client.split(':')[0];
  let row;
  try {
    row = await act();
  } catch (error) {
    row = { happened: String(error), ok: false };
  }
  console.log(JSON.stringify({ client, version: version(name), expected, ...row }));
}

/** Makes `client` wait for the time of `n` calls, and clears its calls. */
export async function exhaust(client, n) {
  const answer = await fetch(`${server}/exhaust/${client}/${n}`, { method: 'POST' });
  if (!answer.ok) throw new Error(`exhaust: ${answer.status}`);
}

/** Returns the calls of `client` that the server saw. */
export async function seen(client) {
  return (await fetch(`${server}/seen/${client}`)).json();
}
