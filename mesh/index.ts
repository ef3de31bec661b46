/**
 * The mesh: node agents and gateways that know each other. A gateway uses it like this:
 *
 * ```ts
 * const registry = await RendezvousRegistry.open(config.mesh_folder, { create: true });
 * const own = await LocalSession.join(registry, { role: 'gateway', ...metadata });   // so that agents let it in
 * await own.update({ lifecycle: 'SERVING' });
 *
 * registry.snapshot();                       // every session's record; filter by lifecycle, role and models
 * registry.onChange((changes) => { … });     // before/after of each session that changed
 * registry.status();                         // unreachable folder, rejected files: for /metrics and logs
 *
 * // one pool a session; the record's addresses and key decide where it goes and whom it trusts
 * const pool = new Pool(sessionOrigin(record), { connect: pinnedConnector(record, own.identity) });
 * await pool.request({ method: 'GET', path: agentPaths.watch });
 *
 * await own.leave();                         // LEFT
 * await registry.close();
 * ```
 *
 * Who learns that a session can no longer say so itself (control sees its job end) tells the others:
 * `registry.retire(session_id, 'Slurm job 42 ended: NODE_FAIL', own.identity)`.
 */
export { ChannelConnection, channel_protocol } from './channels/channel-connection.ts';
export { ChannelSocket } from './channels/channel-socket.ts';
export { gateway_scope, launchScope } from './credential.ts';
export { Delegation } from './delegation.ts';
export { type CurrentDelegation, LocalSession } from './local-session.ts';
export { MeshPeer, type MeshPeerStatus, type SessionStatus } from './mesh-peer.ts';
export { networkKeyDigest } from './network-key.ts';
export { ProviderKey } from './provider-key.ts';
export type { Registry, RegistryChange } from './registry.ts';
export { RelayFallback } from './relay-fallback.ts';
export { RendezvousRegistry } from './rendezvous-registry.ts';
export { SessionIdentity } from './session-identity.ts';
export { SiteAuthority } from './site-authority.ts';
export {
  authorizePeer,
  peerPublicKey,
  pinnedConnect,
  pinnedConnectAt,
  pinnedConnector,
  sessionOrigin,
  sessionTlsServerOptions,
} from './tls.ts';
export { UnauthenticatedSockets } from './unauthenticated-sockets.ts';
