import { Counter, Gauge, type Registry } from 'prom-client';
import type { MeshStatus } from './gateway-gossip.ts';

/** Series of the mesh; reasons of refusals are a fixed few, see docs/mesh.md. */
export function registerMeshMetrics(registry: Registry, statusOf: () => MeshStatus): void {
  const registers = [registry];
  new Gauge({
    name: 'hpcserve_mesh_members',
    help: 'Members of the gossip, this gateway included, and those it is connected with',
    labelNames: ['state'],
    registers,
    collect() {
      const { gossip } = statusOf();
      this.set({ state: 'known' }, gossip?.members ?? 0);
      this.set({ state: 'connected' }, gossip?.connected ?? 0);
    },
  });
  new Counter({
    name: 'hpcserve_mesh_messages_total',
    help: 'Messages of the gossip; undeliverable: no way to the receiver, or it did not read',
    labelNames: ['kind'],
    registers,
    collect() {
      const { gossip } = statusOf();
      this.reset();
      this.inc({ kind: 'sent' }, gossip?.sent ?? 0);
      this.inc({ kind: 'received' }, gossip?.received ?? 0);
      this.inc({ kind: 'undeliverable' }, gossip?.undeliverable ?? 0);
    },
  });
  new Counter({
    name: 'hpcserve_mesh_rejected_total',
    help: 'Records, messages and connections that did not count, by where they came from and why',
    labelNames: ['source', 'reason'],
    registers,
    collect() {
      const { gossip, folder_rejected } = statusOf();
      this.reset();
      for (const [reason, count] of Object.entries(gossip?.rejected ?? {})) {
        if (count > 0) this.inc({ source: 'gossip', reason }, count);
      }
      for (const [reason, count] of Object.entries(folder_rejected)) {
        if (count !== undefined) this.inc({ source: 'folder', reason }, count);
      }
    },
  });
}
