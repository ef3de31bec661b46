import { duration } from '../format.ts';
import { connection } from '../state/connection.ts';
import { useStore } from '../state/store.ts';
import { useNow } from './basics.tsx';

/** Whether what is shown is still so. */
export function Banner() {
  const { state, since_ms } = useStore(connection);
  const now_ms = useNow();
  return (
    <div class="banner-place" role="status">
      {state === 'disconnected' && (
        <p class="banner bad">
          <b>The gateway does not answer</b> since {duration(Math.max(1000, now_ms - since_ms))}. What is
          shown is as it was; the page goes on trying.
        </p>
      )}
      {state === 'back' && <p class="banner good">The gateway answers again.</p>}
    </div>
  );
}
