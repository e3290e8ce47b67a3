// HTTP clients that retry by themselves wait for `Retry-After`, and their first retry passes. Their
// settings are the usual ones, plus those that enable retries.

import axios from 'axios';
import axiosRetry from 'axios-retry';
import got from 'got';
import ky from 'ky';
import { Octokit } from 'octokit';
import OpenAI from 'openai';
import { Agent, RetryAgent, request } from 'undici';

import { check, exhaust, seen, server } from './report.js';

const url = `${server}/`;
/** octokit rounds the time up to seconds, and waits one second longer. */
const EXTRA = { octokit: 2 };

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
  octokit: async (headers) => {
    const throttle = { onRateLimit: () => true, onSecondaryRateLimit: () => false };
    const client = new Octokit({ baseUrl: server, retry: { enabled: false }, throttle });
    return (await client.request('GET /x', { headers })).status;
  },
  openai: async (headers) => {
    const client = new OpenAI({ baseURL: server, apiKey: 'any' });
    return (await client.get('/', { headers }).asResponse()).status;
  },
};

await Promise.all(
  Object.entries(clients).map(([client, get]) =>
    check(client, '429, waits Retry-After, 200', async () => {
      await exhaust(client, 4);
      const status = await get({ 'x-client': client });
      const calls = await seen(client);
      const gap = (calls.at(-1).asked - calls[0].answered) / 1000;
      const delay = calls[0].retry_after;
      const statuses = calls.map((call) => call.status).join(', ');
      // A timer of Node may fire a millisecond early.
      const waited = delay >= 1 && gap >= delay - 0.01 && gap < delay + 2 + (EXTRA[client] ?? 0);
      return {
        happened: `${statuses}; asked ${delay} s, waited ${gap.toFixed(2)} s`,
        ok: status === 200 && statuses === '429, 200' && waited,
      };
    }),
  ),
);
