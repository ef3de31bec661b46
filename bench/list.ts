import type { Bench } from './result.ts';

/** Loaded on demand, so that one bench's peers are no condition of another. */
export const benches: Record<string, () => Promise<Bench>> = {
  engine: async () => (await import('./engine/index.ts')).engineBench,
  engines: async () => (await import('./engines/index.ts')).enginesBench,
  attention: async () => (await import('./attention/index.ts')).attentionBench,
  kernels: async () => (await import('./kernels/index.ts')).kernelsBench,
  pipeline: async () => (await import('./pipeline/index.ts')).pipelineBench,
  refactor: async () => (await import('./refactor/index.ts')).refactorBench,
  gateway: async () => (await import('./gateway/index.ts')).gatewayBench,
  ledger: async () => (await import('./ledger/index.ts')).ledgerBench,
  soak: async () => (await import('./soak/index.ts')).soakBench,
  chaos: async () => (await import('./chaos/index.ts')).chaosBench,
  mesh: async () => (await import('./mesh/index.ts')).meshBench,
  solver: async () => (await import('./solver/index.ts')).solverBench,
  simulator: async () => (await import('./simulator/index.ts')).simulatorBench,
  preemption: async () => (await import('./preemption/index.ts')).preemptionBench,
  commands: async () => (await import('./commands/index.ts')).commandsBench,
  slurm: async () => (await import('./slurm/index.ts')).slurmBench,
  scavenging: async () => (await import('./scavenging/index.ts')).scavengingBench,
  sharing: async () => (await import('./sharing/index.ts')).sharingBench,
  reuse: async () => (await import('./reuse/index.ts')).reuseBench,
  bursts: async () => (await import('./bursts/index.ts')).burstsBench,
  streaming: async () => (await import('./streaming/index.ts')).streamingBench,
  'streaming-sim': async () => (await import('./streaming-sim/index.ts')).streamingSimulatedBench,
  kv: async () => (await import('./kv/index.ts')).kvBench,
  'kv-transfer': async () => (await import('./kv-transfer/index.ts')).kvTransferBench,
};
