// Denied uploads, one after the other over a connection that is kept if the server keeps it: each ends
// with its 429. Its settings are the usual ones.

import { Agent } from 'node:http';

import axios from 'axios';

import { check, server } from './report.js';

// bytes and requests
const sizes = {
  '1 B': [1, 100],
  '1 kB': [1_000, 100],
  '50 kB': [50_000, 200],
  '1 MB': [1_000_000, 20],
  '100 MB': [100_000_000, 2],
};
const BOUND = 65_536;
const path = process.env.UPLOAD ?? '/upload';
const proxy = process.env.PROXY;
const ways = { direct: server + path };
if (proxy) {
  ways.nginx = proxy + path;
  ways['nginx, its defaults'] = `${proxy}/default${path}`;
}

async function outcome(client, url, body) {
  try {
    return (await client.post(url, body)).status;
  } catch (error) {
    return error.code ?? String(error);
  }
}

/** Returns the lost denials of each size, and whether none was lost that need not be. */
async function uploads(url) {
  const httpAgent = new Agent({ keepAlive: true, maxSockets: 1 });
  const client = axios.create({ httpAgent, maxBodyLength: Infinity, validateStatus: () => true });
  const found = [];
  let ok = true;
  for (const [name, [size, count]] of Object.entries(sizes)) {
    const body = Buffer.alloc(size, 'x');
    const ends = {};
    for (let n = 0; n < count; n += 1) {
      const end = await outcome(client, url, body);
      ends[end] = (ends[end] ?? 0) + 1;
    }
    const lost = count - (ends[429] ?? 0);
    delete ends[429];
    found.push(`${name}: ${lost} of ${count}${lost ? ` ${JSON.stringify(ends)}` : ''}`);
    ok &&= lost === 0 || size > BOUND;
  }
  httpAgent.destroy();
  return { happened: found.join('; '), ok };
}

for (const [way, url] of Object.entries(ways)) {
  await check(`axios: ${way}`, 'none lost up to 64 KiB', () => uploads(url));
}
