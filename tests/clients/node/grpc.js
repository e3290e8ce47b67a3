// grpc-js: the form of a rejection, and retries after the pushback.

import { Client, Metadata, credentials, status as codes } from '@grpc/grpc-js';
import details from 'nice-grpc-error-details';
import { Status } from 'nice-grpc-error-details/lib/proto/google/rpc/status.js';

import { check, exhaust, seen, server } from './report.js';

const CHECK = '/grpc.health.v1.Health/Check';
const WATCH = '/grpc.health.v1.Health/Watch';
const GATHER = '/test.Echo/Gather';
const SERVING = '0801';

const asIs = (bytes) => bytes;
const empty = Buffer.alloc(0);
const target = new URL(server).host;

/** Retries soon, unless the pushback says otherwise. */
const retrying = {
  'grpc.service_config': JSON.stringify({
    methodConfig: [
      {
        name: [{}],
        retryPolicy: {
          maxAttempts: 3,
          initialBackoff: '0.01s',
          maxBackoff: '0.01s',
          backoffMultiplier: 1,
          retryableStatusCodes: ['RESOURCE_EXHAUSTED'],
        },
      },
    ],
  }),
};

function metadata(fields) {
  const metadata = new Metadata();
  for (const [name, value] of Object.entries(fields)) metadata.set(name, value);
  return metadata;
}

/** Returns the result of a unary call: an error, or the bytes of an answer. */
function unary(client, fields) {
  return new Promise((done) => {
    const deadline = { deadline: Date.now() + 20_000 };
    client.makeUnaryRequest(CHECK, asIs, asIs, empty, metadata(fields), deadline, (error, answer) =>
      done({ error, answer }),
    );
  });
}

/** Returns the details of an error, decoded by third-party code. */
function decoded(error) {
  const [bytes] = error.metadata.get('grpc-status-details-bin');
  const status = Status.decode(bytes);
  const find = (kind) => {
    const any = status.details.find((any) => any.typeUrl.endsWith(`/google.rpc.${kind}`));
    return any && details[kind].decode(any.value);
  };
  return { status, retry: find('RetryInfo')?.retryDelay, failure: find('QuotaFailure') };
}

/** Checks that an error is our rejection in every part, with equal texts everywhere. */
function rejection(error) {
  if (error?.code !== codes.RESOURCE_EXHAUSTED) return { happened: String(error), ok: false };
  const { status, retry, failure } = decoded(error);
  const field = (name) => Number(error.metadata.get(name)[0]);
  const delay = retry.seconds * 1000 + retry.nanos / 1e6;
  const seconds = field('retry-after');
  const subject = failure.violations[0].subject;
  return {
    happened: `${error.code}, RetryInfo ${delay} ms, ${subject}, Retry-After: ${seconds}`,
    ok:
      error.details === `Quota exhausted; retry in ${seconds} s.` &&
      status.code === error.code &&
      status.message === error.details &&
      delay > 0 &&
      delay <= LONG * 1500 &&
      delay === field('grpc-retry-pushback-ms') &&
      seconds === Math.ceil(delay / 1000) &&
      failure.violations.length === 1 &&
      subject === 'policy:rpc',
  };
}

const REJECTED = '8, RetryInfo, QuotaFailure, Retry-After';
/** Waits in calls of 1.5 s each. */
const LONG = 9;
const SHORT = 3;

/** Runs one check with its own client and account, which has to wait. */
async function asks(what, expected, wait, options, act) {
  const name = `grpc-js-${what.replaceAll(' ', '-')}`;
  await check(`@grpc/grpc-js: ${what}`, expected, async () => {
    await exhaust(name, wait);
    const client = new Client(target, credentials.createInsecure(), options);
    try {
      return await act(client, { 'x-client': name }, () => seen(name));
    } finally {
      client.close();
    }
  });
}

await Promise.all([
  asks('unary', REJECTED, LONG, {}, async (client, fields, seen) => {
    const said = rejection((await unary(client, fields)).error);
    return { ...said, ok: said.ok && (await seen()).length === 1 };
  }),
  asks('server stream', REJECTED, LONG, {}, async (client, fields) => {
    const call = client.makeServerStreamRequest(WATCH, asIs, asIs, empty, metadata(fields));
    return rejection(await new Promise((done) => call.on('data', done).on('error', done)));
  }),
  asks('client stream, still sending', `${REJECTED}, at once`, LONG, {}, async (client, fields) => {
    const start = performance.now();
    const error = await new Promise((done) => {
      const call = client.makeClientStreamRequest(GATHER, asIs, asIs, metadata(fields), done);
      const sending = setInterval(() => call.write(Buffer.alloc(1000)), 5);
      call.on('status', () => clearInterval(sending));
      setTimeout(() => call.cancel(), 20_000).unref();
    });
    const said = rejection(error);
    return { ...said, ok: said.ok && performance.now() - start < 5000 };
  }),
  asks('message', 'caf\u00e9 100%', LONG, {}, async (client) => {
    const { error } = await unary(client, {});
    const same = decoded(error).status.message === error.details;
    const whole = error.details === 'Request rejected: missing caf\u00e9 100%.';
    return { happened: error.details, ok: error.code === codes.INVALID_ARGUMENT && whole && same };
  }),
  asks('pushback', '8, waits the pushback, 0', SHORT, retrying, async (client, fields, seen) => {
    const { error, answer } = await unary(client, fields);
    const calls = await seen();
    const gap = calls.at(-1).asked - calls[0].answered;
    const { pushback } = calls[0];
    const statuses = calls.map((call) => call.grpc_status ?? 0).join(', ');
    const admitted = !error && answer.toString('hex') === SERVING && statuses === '8, 0';
    return {
      happened: error ? String(error) : `${statuses}, asked ${pushback} ms, waited ${gap.toFixed(0)} ms`,
      ok: admitted && pushback > 0 && gap >= pushback && gap < pushback + 2000,
    };
  }),
  asks('pushback -1', '8, no retry', SHORT, retrying, async (client, fields, seen) => {
    const { error } = await unary(client, { ...fields, 'x-costly': '1' });
    const calls = await seen();
    const { pushback } = calls[0];
    const once = calls.length === 1 && pushback === -1 && decoded(error).retry === undefined;
    return {
      happened: `${error?.code}, asked ${pushback}, ${calls.length} call`,
      ok: error?.code === codes.RESOURCE_EXHAUSTED && once,
    };
  }),
]);
