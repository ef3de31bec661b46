import type { Logger } from 'pino';

/** JSON lines; never a prompt, never a key. */
export type GatewayLog = Pick<Logger, 'debug' | 'info' | 'warn' | 'error'>;
