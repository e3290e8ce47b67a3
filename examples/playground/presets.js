// The choices of the page: the algorithms with the settings that they use, and settings to start
// from.

export const ALGORITHMS = {
  gcra: { label: "GCRA", uses: ["burst", "max_wait"] },
  token_bucket: { label: "Token bucket", uses: ["burst"] },
  fixed_window: { label: "Fixed window", uses: [] },
  paced_window: { label: "Fixed window, paced", uses: ["max_wait"] },
  anchored_window: { label: "Window from the first request", uses: [] },
  sliding_window: { label: "Sliding window", uses: ["buckets"] },
  sliding_log: { label: "Sliding log", uses: [] },
  concurrent: { label: "Slots: requests at a time", uses: ["hold"] },
};

// Every setting that a link restores. `play` is the traffic that starts with the page.
export const DEFAULTS = {
  preset: "boundary",
  algorithm: "gcra",
  other: "fixed_window",
  units: "10",
  period: "4",
  burst: "10",
  cost: "1",
  max_wait: "0",
  buckets: "10",
  hold: "2",
  many: "10",
  rate: "8",
  play: "boundary",
};

export const PRESETS = {
  boundary: {
    label: "Two bursts",
    about: "A fixed window allows twice its limit around a window boundary. GCRA does not.",
  },
  login: {
    label: "Login",
    about: "Five attempts a minute: a typing error costs nothing, and guessing is slow.",
    units: "5", period: "60", burst: "5", many: "8", play: "burst",
  },
  api: {
    label: "Public API",
    about: "A page load may send 20 requests at once. On average, 10 per second pass.",
    other: "sliding_log", units: "10", period: "1", burst: "20", many: "30", rate: "15", play: "steady",
  },
  llm: {
    label: "LLM tokens",
    about: "Each request costs its tokens: 500 of 6,000 per minute here.",
    other: "sliding_window", units: "6000", period: "60", burst: "3000", cost: "500", many: "10", rate: "2", play: "steady",
  },
  webhook: {
    label: "Webhooks",
    about: "Calls to a partner wait up to two seconds for their turn, and are not lost.",
    other: "token_bucket", units: "5", period: "1", burst: "1", max_wait: "2", many: "5", rate: "4", play: "burst",
  },
  cron: {
    label: "Cron job",
    about: "Several servers start the same job; one run in ten seconds passes.",
    algorithm: "anchored_window", units: "1", period: "10", burst: "1", many: "5", rate: "2", play: "steady",
  },
  slots: {
    label: "Long requests",
    about: "Three run at a time. A rate of three per second lets six run, because each takes two seconds.",
    algorithm: "concurrent", units: "3", period: "1", burst: "3", hold: "2", many: "8", rate: "5", play: "steady",
  },
  own: { label: "Your own settings", about: "Change any setting; the link below restores it." },
};
