/** Where the product begins, and what beside it is there for a purpose of its own. */

/** What people and our own processes start, threads among it. */
export const productionEntries = [
  'cli/main.ts',
  'cli/link.ts',
  'cli/quickstart.ts',
  'cli/package/main.ts',
  'cli/*.mjs',
  'agent/main.ts',
  'agent/device-worker/main.ts',
  'agent/private-network/main.ts',
  'agent/device-worker/compute/main.ts',
  'gateway/main.ts',
  'gateway/holder/main.ts',
  'control/keeper/main.ts',
  // Threads, started by path.
  'agent/memory/hash-thread.ts',
  'agent/memory/load/load-thread.ts',
  'agent/memory/peers/peer-thread.ts',
  'agent/pipeline/ring-thread.ts',
  'ledger/questions/question-thread.ts',
  'ledger/tail/fold-thread.ts',
  // A process, started by path.
  'ledger/sql-child.ts',
  'native/synth/weight-worker.ts',
];

/** The benches, which are programs of their own: what they alone use is part of the product only in `simulators`. */
export const benchEntries = [
  'bench/run.ts',
  'bench/calibrate/main.ts',
  'bench/gateway/paced-engine.ts',
  'bench/kv-transfer/target.ts',
  'bench/routers/node-proxy.ts',
  'bench/soak/attacker.ts',
  'bench/soak/idle-load.ts',
];

/**
 * Folders and files of simulators, which run the product's decisions in a world that is made up: benches and tests
 * start them, and no process does.
 */
export const simulators = [
  'solver/cluster-simulator/',
  'solver/routing-simulator/',
  'solver/sharing-simulator/',
  'solver/pipeline-simulator/',
  'solver/streaming-simulator/',
  'mesh/gossip/simulation.ts',
  'mesh/gossip/memory-network.ts',
  'mesh/gossip/timer-queue.ts',
];

export const productSources =
  '{cli,control,gateway,agent,solver,mesh,slurm,ledger,native,host,spec}/**/*.{ts,mjs}';

/** Installed by apt-get where they are missing, or a part of every Linux. */
export const systemBinaries = [
  ...[
    'apt-get',
    'cc',
    'dpkg-deb',
    'fincore',
    'fusermount3',
    'ip',
    'mkfifo',
    'prometheus',
    'promtool',
    'mount',
    'objdump',
    'openssl',
    'readelf',
    'shellcheck',
    'ssh-add',
    'ssh-agent',
  ],
  ...['ssh-keygen', 'sshfs', 'umount', 'unshare'],
];
