import { useState } from 'preact/hooks';
import type { KeyLimits, KeyRow } from '../api/rows.ts';
import { usePoll } from '../state/poll.ts';
import { meshTable } from '../state/questions.ts';
import { signIn } from '../state/sign-in.ts';
import { useStore } from '../state/store.ts';
import { Button, Field } from './basics.tsx';

export interface KeyWishes {
  name: string;
  settings: KeyLimits;
  /** Those that the form asked for. */
  fields: readonly (keyof KeyLimits)[];
}

/** What whoever has a key may set of keys that she makes with it. */
const ownFields = ['models', 'expires_at_ms'] as const satisfies (keyof KeyLimits)[];
const limitFields = [
  'models',
  'requests_per_minute',
  'tokens_per_minute',
  'concurrent_requests',
  'budget',
  'cache_group',
  'batch',
] as const satisfies (keyof KeyLimits)[];
const peopleFields = ['expires_at_ms', 'user', 'project'] as const satisfies (keyof KeyLimits)[];

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
  const { role, knows_users = false } = useStore(signIn) ?? {};
  const isOperator = role === 'operator';
  const fields = isOperator ? [...limitFields, ...(knows_users ? peopleFields : [])] : ownFields;
  const onForm = (event: SubmitEvent): void => {
    event.preventDefault();
    setBusy(true);
    const form = new FormData(event.currentTarget as HTMLFormElement);
    onSubmit({ name: textOf(form, 'name'), settings: settingsOf(form, settings), fields }).catch(
      (error: Error) => {
        setBusy(false);
        setTrouble(error.message);
      },
    );
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
      {isOperator && <Limits settings={settings} knowsUsers={knows_users} />}
      {knows_users && <People settings={settings} isOperator={isOperator} />}
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

function Limits({ settings, knowsUsers }: { settings: KeyLimits; knowsUsers: boolean }) {
  const { budget } = settings;
  const hours = budget?.device_s === undefined ? undefined : budget.device_s / 3600;
  return (
    <>
      <div class="field-row">
        <Amount label="Requests a minute" name="requests_per_minute" value={settings.requests_per_minute} />
        <Amount label="Tokens a minute" name="tokens_per_minute" value={settings.tokens_per_minute} />
        <Amount label="At a time" name="concurrent_requests" value={settings.concurrent_requests} />
      </div>
      <div class="field-row">
        <Amount label="Budget, tokens" name="budget" value={budget?.tokens} />
        {knowsUsers && <Amount label="Device hours" name="device_hours" value={hours} step="any" />}
        <Field label="for each">
          <select name="window">
            {windows.map(({ value, words }) => (
              <option key={value} value={value} selected={value === (budget?.window ?? 'month')}>
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
    </>
  );
}

function People({ settings, isOperator }: { settings: KeyLimits; isOperator: boolean }) {
  const { user, project, expires_at_ms } = settings;
  return (
    <div class="field-row">
      {isOperator && (
        <Field label="User">
          <input name="user" maxLength={128} autoComplete="off" placeholder="its name" defaultValue={user} />
        </Field>
      )}
      {isOperator && (
        <Field label="Project">
          <input name="project" maxLength={128} autoComplete="off" defaultValue={project} />
        </Field>
      )}
      <Field label="Valid until (UTC)">
        <input name="expires" type="date" defaultValue={dayOf(expires_at_ms)} />
      </Field>
    </div>
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

interface AmountProps {
  label: string;
  name: string;
  value: number | undefined;
  step?: number | 'any';
}

function Amount({ label, name, value, step = 1 }: AmountProps) {
  return (
    <Field label={label}>
      <input
        name={name}
        type="number"
        // What it has already is no hindrance to other changes.
        min={step === 'any' ? Math.min(0.01, value ?? 0.01) : 1}
        step={step}
        placeholder="no limit"
        defaultValue={value?.toString()}
      />
    </Field>
  );
}

function textOf(form: FormData, name: string): string {
  return String(form.get(name) ?? '').trim();
}

/** @param known what the form was filled in with, which is what it was where nobody changed it */
function secondsOf(hours: number, known: number | undefined): number {
  return known !== undefined && known / 3600 === hours ? known : hours * 3600;
}

/** Of UTC, as the form has it: the year in as many digits as it needs, four at least. */
function dayOf(time_ms: number | undefined): string | undefined {
  if (time_ms === undefined) return undefined;
  const [day] = new Date(time_ms).toISOString().split('T');
  return day!.replace(/^\+0*/, '');
}

/** Years beyond 9999 have six digits in JavaScript. */
function endOf(day: string): number {
  return Date.parse(`+${day.padStart(12, '0')}T23:59:59Z`);
}

/** @param known what the form was filled in with */
function settingsOf(form: FormData, known: KeyLimits): KeyLimits {
  const text = (name: string): string => textOf(form, name);
  const amount = (name: string): number | undefined => (text(name) === '' ? undefined : Number(text(name)));
  const models = text('models')
    .split(',')
    .map((name) => name.trim())
    .filter(Boolean);
  const settings: KeyLimits = {};
  if (models.length > 0) settings.models = models;
  for (const name of ['requests_per_minute', 'tokens_per_minute', 'concurrent_requests'] as const) {
    const value = amount(name);
    if (value !== undefined) settings[name] = value;
  }
  const tokens = amount('budget');
  const hours = amount('device_hours');
  if (tokens !== undefined || hours !== undefined) {
    settings.budget = { window: text('window') as 'day' | 'month' | 'total' };
    if (tokens !== undefined) settings.budget.tokens = tokens;
    if (hours !== undefined) settings.budget.device_s = secondsOf(hours, known.budget?.device_s);
  }
  for (const name of ['cache_group', 'user', 'project'] as const)
    if (text(name) !== '') settings[name] = text(name);
  // To the end of that day; the time of a day that nobody changed is not shown, and stays.
  const expires = text('expires');
  if (expires !== '' && expires === dayOf(known.expires_at_ms)) settings.expires_at_ms = known.expires_at_ms!;
  else if (expires !== '') settings.expires_at_ms = endOf(expires);
  if (form.get('batch') !== null) settings.batch = true;
  return settings;
}
