import { defineErrors } from './define.ts';

/** What can go wrong when keys and values of a sequence travel to another worker; it is computed again then. */
export const transferErrors = defineErrors({
  E_KV_FORMAT: {
    cause:
      'Two workers do not mean the same by a row of keys and values: another build, another model file, other layers, or another type.',
    fix: 'nothing: the sequence is computed again from its tokens; where it happens often, run one release and one model file everywhere',
    http_status: 409,
    exit_code: 11,
  },
  E_KV_STALE: {
    cause:
      'Keys and values came for a sequence that has moved on: an older generation, or a message that was repeated.',
    fix: 'nothing: they were refused; report it where no worker was lost and nothing moved',
    http_status: 409,
    exit_code: 11,
  },
  E_KV_CLOSED: {
    cause: 'A way for keys and values was used that the other worker has closed meanwhile.',
    fix: 'nothing: it is opened again; see the logs of both agents for why it was closed, where that is frequent',
    http_status: 409,
    exit_code: 11,
  },
  E_KV_CHECKSUM: {
    cause: 'Keys and values are not those that were sent. They were not used.',
    fix: 'nothing: the sequence is computed again; where it happens again on the same nodes, have their memory and network looked at',
    http_status: 500,
    exit_code: 11,
  },
  E_KV_TRANSFER: {
    cause:
      'Keys and values did not arrive: the peer is gone, silent, too slow, or does not let this worker in.',
    fix: 'nothing: the sequence goes on where it was, or is computed again; see that the nodes reach each other on the ports of network.port_range',
    http_status: 503,
    exit_code: 12,
  },
  E_KV_FABRIC: {
    cause: 'A way for keys and values was announced and does not work. A slower one is used.',
    fix: 'see what libfabric says (`fi_info`, FI_LOG_LEVEL=warn), the limit on locked memory (`ulimit -l`), and whether both jobs may use the fabric',
    http_status: 503,
    exit_code: 12,
  },
  E_KV_MESSAGE: {
    cause:
      'A peer said something about a transfer that cannot be: too large, malformed, or about what is not under way.',
    fix: 'run one release everywhere; otherwise report it with the logs of both agents',
    http_status: 400,
    exit_code: 11,
  },
  E_KV_ROOM: {
    cause: 'A worker has no blocks or no slot for a sequence that is to move there.',
    fix: 'nothing: it goes elsewhere or stays; give the model more kv_tokens where this is frequent',
    http_status: 503,
    exit_code: 12,
  },
});
