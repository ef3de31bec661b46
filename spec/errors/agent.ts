import { defineErrors } from './define.ts';

/** What can go wrong on a node of a job, and in the mesh that node agents and gateways form. */
export const agentErrors = defineErrors({
  E_MESH_KEY: {
    cause: 'The network key of the mesh cannot be read, written or trusted.',
    fix: 'check owner and mode of network.key in the mesh folder (0600, or 0640 in a folder of a group); to start a new mesh, stop everything and remove the file',
    http_status: 500,
    exit_code: 12,
  },
  E_MESH_FOLDER: {
    cause: 'The rendezvous folder of the mesh cannot be reached, read or written.',
    fix: 'check that the filesystem is mounted on this host, that there is space, and that you may write there',
    http_status: 503,
    exit_code: 12,
  },
  E_MESH_RECORD: {
    cause: 'A session record is damaged, forged, too large, or not of this mesh; it was not used.',
    fix: 'remove the file if nothing of yours writes it; all members must use the same network.key',
    http_status: 502,
    exit_code: 7,
  },
  E_MESH_PEER: {
    cause: 'A peer did not show a key that a live record of this mesh names.',
    fix: 'use the same mesh folder and network.key on both sides; restart the side whose record is missing',
    http_status: 403,
    exit_code: 7,
  },
  E_MESH_PINNING: {
    cause: 'The host at the address of a session showed another key than the one in its record.',
    fix: 'the session is gone and another process has its port, or somebody is in between: redeploy if it persists',
    http_status: 502,
    exit_code: 7,
  },
  E_MESH_CONNECT: {
    cause: 'None of the addresses of a session accepts connections.',
    fix: 'check that this host reaches the node (firewall, `network` in the site config) and that its job still runs',
    http_status: 502,
    exit_code: 7,
  },
});
