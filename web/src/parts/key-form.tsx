import { useState } from 'preact/hooks';
import type { KeySettings } from '../../../spec/key-settings.ts';
import type { KeyRow } from '../api/rows.ts';
import { usePoll } from '../state/poll.ts';
import { meshTable } from '../state/questions.ts';
import { Button, Field } from './basics.tsx';

export interface KeyWishes {
  name: string;
  settings: KeySettings;
  /** Those that the form asks for. */
  fields: readonly (keyof KeySettings)[];
}

const fields = [
  'models',
  'requests_per_minute',
  'tokens_per_minute',
  'concurrent_requests',
  'budget',
  'cache_group',
  'batch',
] as const satisfies (keyof KeySettings)[];

const windows = [
  { value: 'day', words: 'day' },
  { value: 'month', words: 'month' },
  { value: 'total', words: 'ever (in all)' },
] as const;

interface KeyFormProps {
  submit: string;
  known?: KeyRow;
  onSubmit: (wishes: KeyWishes) => Promise<void>;
}

/** Name and limits of a key; the gateway checks them. */
export function KeyForm({ submit, known, onSubmit }: KeyFormProps) {
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState<string>();
  const { settings = {} } = known ?? {};
  const onForm = (event: SubmitEvent): void => {
    event.preventDefault();
    setBusy(true);
    onSubmit(wishesOf(new FormData(event.currentTarget as HTMLFormElement))).catch((error: Error) => {
      setBusy(false);
      setTrouble(error.message);
    });
  };
  return (
    <form class="key-form" onSubmit={onForm}>
      {!known && (
        <Field label="Name" hint="Whose it is, or for what">
          <input name="name" required maxLength={128} autoFocus autoComplete="off" />
        </Field>
      )}
      <Field label="Models" hint="Names with commas; empty: all of them">
        <input
          name="models"
          list="model-names"
          autoComplete="off"
          defaultValue={settings.models?.join(', ')}
        />
        <ModelNames />
      </Field>
      <div class="field-row">
        <Amount label="Requests a minute" name="requests_per_minute" value={settings.requests_per_minute} />
        <Amount label="Tokens a minute" name="tokens_per_minute" value={settings.tokens_per_minute} />
        <Amount label="At a time" name="concurrent_requests" value={settings.concurrent_requests} />
      </div>
      <div class="field-row">
        <Amount label="Budget, tokens" name="budget" value={settings.budget?.tokens} />
        <Field label="for each">
          <select name="window">
            {windows.map(({ value, words }) => (
              <option key={value} value={value} selected={value === (settings.budget?.window ?? 'month')}>
                {words}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Cache group">
          <input name="cache_group" maxLength={64} autoComplete="off" defaultValue={settings.cache_group} />
        </Field>
      </div>
      <label class="check">
        <input type="checkbox" name="batch" defaultChecked={settings.batch} /> Batch: its requests can wait,
        and go to nodes that may be preempted
      </label>
      <p class="form-trouble" role="alert">
        {trouble}
      </p>
      <div class="dialog-foot">
        <Button kind="primary" type="submit" disabled={busy}>
          {submit}
        </Button>
      </div>
    </form>
  );
}

/** What a browser proposes while one types. */
function ModelNames() {
  const { data } = usePoll(meshTable);
  const names = (data?.sessions ?? []).flatMap(({ models }) => models.map(({ name }) => name));
  return (
    <datalist id="model-names">
      {[...new Set(names)].map((name) => (
        <option key={name} value={name} />
      ))}
    </datalist>
  );
}

function Amount({ label, name, value }: { label: string; name: string; value: number | undefined }) {
  return (
    <Field label={label}>
      <input
        name={name}
        type="number"
        min={1}
        step={1}
        placeholder="no limit"
        defaultValue={value?.toString()}
      />
    </Field>
  );
}

function wishesOf(form: FormData): KeyWishes {
  const text = (name: string): string => String(form.get(name) ?? '').trim();
  const amount = (name: string): number | undefined => (text(name) === '' ? undefined : Number(text(name)));
  const models = text('models')
    .split(',')
    .map((name) => name.trim())
    .filter(Boolean);
  const settings: KeySettings = {};
  if (models.length > 0) settings.models = models;
  for (const name of ['requests_per_minute', 'tokens_per_minute', 'concurrent_requests'] as const) {
    const value = amount(name);
    if (value !== undefined) settings[name] = value;
  }
  const tokens = amount('budget');
  if (tokens !== undefined) settings.budget = { tokens, window: text('window') as 'day' | 'month' | 'total' };
  if (text('cache_group') !== '') settings.cache_group = text('cache_group');
  if (form.get('batch') !== null) settings.batch = true;
  return { name: text('name'), settings, fields };
}
