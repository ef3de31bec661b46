/** The past that the live page draws. It is written whatever page is shown, so that it is there when one comes. */
import { LiveHistory } from './history.ts';
import { meshTable, metricsText } from './questions.ts';
import { signIn } from './sign-in.ts';
import { Store } from './store.ts';

export const history = new LiveHistory();
/** How many points there were: what draws is drawn again. */
export const recorded = new Store(0);

signIn.watch(() => history.clear());

/** Goes on as long as it is not ended. @returns what ends it */
export function record(): () => void {
  const leave: (() => unknown)[] = [meshTable.use(), metricsText.use()];
  const add = (at_ms: number, text?: string): void => {
    const { data } = meshTable.store.value;
    if (!data) return;
    history.add(at_ms, data, text);
    recorded.set(recorded.value + 1);
  };
  leave.push(
    metricsText.store.watch(() => {
      const { data, at_ms, error } = metricsText.store.value;
      if (data !== undefined && at_ms !== undefined && !error) add(at_ms, data);
    }),
    // Without metrics there is the load alone.
    meshTable.store.watch(() => {
      const { at_ms, error } = meshTable.store.value;
      if (at_ms !== undefined && !error && metricsText.store.value.error) add(at_ms);
    }),
  );
  return () => {
    for (const each of leave) each();
  };
}
