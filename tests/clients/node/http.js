// Clients of HTTP that retry by themselves: they wait as they are told, and the first retry passes.
// Their settings are the usual ones, and what has to be said to retry at all.

import axios from 'axios';
import axiosRetry from 'axios-retry';
import got from 'got';
import ky from 'ky';
import { Agent, RetryAgent, request } from 'undici';

import { check, exhaust, seen, server } from './report.js';

const url = `${server}/`;

const clients = {
  ky: async (headers) => (await ky(url, { headers })).status,
  got: async (headers) => (await got(url, { headers })).statusCode,
  'axios-retry': async (headers) => {
    const client = axios.create();
    axiosRetry(client);
    return (await client.get(url, { headers })).status;
  },
  undici: async (headers) => {
    const dispatcher = new RetryAgent(new Agent());
    const { statusCode, body } = await request(url, { dispatcher, headers });
    await body.dump();
    await dispatcher.close();
    return statusCode;
  },
};

await Promise.all(
  Object.entries(clients).map(([client, get]) =>
    check(client, '429, waits as told, 200', async () => {
      await exhaust(client, 4);
      const status = await get({ 'x-client': client });
      const calls = await seen(client);
      const gap = (calls.at(-1).asked - calls[0].answered) / 1000;
      const told = calls[0].retry_after;
      const statuses = calls.map((call) => call.status).join(', ');
      // a timer of Node may be a millisecond early
      const waited = told >= 1 && gap >= told - 0.01 && gap < told + 2;
      return {
        happened: `${statuses}; told ${told} s, waited ${gap.toFixed(2)} s`,
        ok: status === 200 && statuses === '429, 200' && waited,
      };
    }),
  ),
);
