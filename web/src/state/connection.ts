/** Whether the gateway answers, as the last questions showed. */
import { GatewayError, UnreachableError } from '../api/client.ts';
import { signIn, signOut } from './sign-in.ts';
import { Store } from './store.ts';

export interface Connection {
  state: 'connected' | 'disconnected' | 'back';
  /** When it became so. */
  since_ms: number;
}

/** How long the page says that the gateway is back. */
const back_ms = 4000;

export const connection = new Store<Connection>({ state: 'connected', since_ms: Date.now() });

export function gatewayAnswered(): void {
  if (connection.value.state !== 'disconnected') return;
  const back: Connection = { state: 'back', since_ms: Date.now() };
  connection.set(back);
  setTimeout(() => {
    if (connection.value === back) connection.set({ state: 'connected', since_ms: Date.now() });
  }, back_ms);
}

/** Takes notice of what went wrong with a question; what is left is for who asked. */
export function gatewayFailed(error: unknown): void {
  if (error instanceof UnreachableError) {
    if (connection.value.state !== 'disconnected')
      connection.set({ state: 'disconnected', since_ms: Date.now() });
    return;
  }
  gatewayAnswered();
  if (error instanceof GatewayError && error.isSignedOut && signIn.value)
    signOut(
      error.isSessionOver
        ? 'Your session is over. Sign in again.'
        : 'The gateway does not take this key any more: it was revoked, or has expired.',
    );
}
