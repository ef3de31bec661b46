import { type Settings, settings } from '../state/conversation.ts';
import { Field } from './basics.tsx';

const numbers = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.1 },
  { name: 'top_p', label: 'Top p', min: 0, max: 1, step: 0.05 },
  { name: 'max_tokens', label: 'Most tokens', min: 1, max: 1_000_000, step: 1 },
  { name: 'seed', label: 'Seed', min: 0, max: 2 ** 31 - 1, step: 1 },
] as const;

/** What goes with each question from now on. */
export function ChatSettings({ chosen }: { chosen: Settings }) {
  const set = (name: keyof Settings, value: string): void => settings.set({ ...chosen, [name]: value });
  return (
    <section class="chat-settings" aria-label="Parameters">
      <div class="field-row">
        {numbers.map(({ name, label, ...bounds }) => (
          <Field label={label} key={name}>
            <input
              type="number"
              {...bounds}
              placeholder="default"
              value={chosen[name]}
              onInput={(event) => set(name, event.currentTarget.value)}
            />
          </Field>
        ))}
      </div>
      <Field label="System prompt">
        <textarea
          rows={2}
          placeholder="none"
          value={chosen.system}
          onInput={(event) => set('system', event.currentTarget.value)}
        />
      </Field>
    </section>
  );
}
