/** Small parts that every page is made of. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { GatewayError, UnreachableError } from '../api/client.ts';
import { percent } from '../format.ts';
import { Icon, type IconName } from './icon.tsx';

type Children = { children?: ComponentChildren };

/** @param note what the page is about, in one line */
export function PageHead({ title, note, children }: Children & { title: string; note?: ComponentChildren }) {
  return (
    <header class="page-head">
      <div>
        <h1 tabIndex={-1}>{title}</h1>
        {note !== undefined && <p class="note">{note}</p>}
      </div>
      <div class="actions">{children}</div>
    </header>
  );
}

export type Tone = 'good' | 'busy' | 'warn' | 'bad' | 'quiet';

/** A state in a word; the dot has its colour, the word its meaning. */
export function Badge({ tone, children, title }: Children & { tone: Tone; title?: string }) {
  return (
    <span class={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

/** A share as a bar, with the words beside it. */
export function Meter({ share, label, tone }: { share: number; label: string; tone?: Tone }) {
  const part = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
  return (
    <span class={`meter ${tone ?? ''}`}>
      <span class="bar" aria-hidden="true">
        <span style={{ width: `${100 * part}%` }} />
      </span>
      <span class="meter-label">{label}</span>
      <span class="visually-hidden"> ({percent(part)})</span>
    </span>
  );
}

export function Empty({ title, children }: Children & { title: string }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** Lines where text will be, so that nothing jumps when it comes. */
export function Loading({ rows = 3, what }: { rows?: number; what: string }) {
  return (
    <div class="loading" role="status">
      <span class="visually-hidden">{what}</span>
      {Array.from({ length: rows }, (_, at) => (
        <span class="loading-row" key={at} aria-hidden="true" />
      ))}
    </div>
  );
}

/** What went wrong, in the gateway's own words. */
export function Trouble({ error, what }: { error: Error; what: string }) {
  if (error instanceof UnreachableError)
    return (
      <Empty title={what}>
        <p>The gateway does not answer now. The page goes on trying.</p>
      </Empty>
    );
  return (
    <div class="trouble" role="alert">
      <p class="empty-title">{what}</p>
      <p>{error.message}</p>
      {error instanceof GatewayError && <p class="code">{error.code}</p>}
    </div>
  );
}

interface ButtonProps {
  icon?: IconName;
  kind?: 'primary' | 'plain' | 'danger';
  /** In place of words, where only the icon is shown. */
  label?: string;
  onClick?: () => void;
  disabled?: boolean;
  type?: 'button' | 'submit';
  pressed?: boolean;
}

export function Button({
  icon,
  kind,
  label,
  children,
  pressed,
  type = 'button',
  ...rest
}: Children & ButtonProps) {
  return (
    <button
      {...rest}
      type={type}
      class={`button ${kind ?? ''} ${children === undefined ? 'only-icon' : ''}`}
      aria-label={label}
      aria-pressed={pressed}
      title={children === undefined ? label : undefined}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

const copied_ms = 1500;

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    await writeClipboard(text);
    setCopied(true);
    setTimeout(() => setCopied(false), copied_ms);
  };
  return (
    <Button icon={copied ? 'done' : 'copy'} kind="plain" label={copied ? 'Copied' : label} onClick={copy} />
  );
}

/** Browsers have a clipboard for HTTPS and loopback alone; elsewhere the older way does it. */
async function writeClipboard(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement('textarea');
  area.value = text;
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

interface DialogProps {
  title: string;
  onClose: () => void;
}

/** A window over the page; the browser keeps the keyboard in it and gives it back. */
export function Dialog({ title, onClose, children }: Children & DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      onClose={onClose}
      onMouseDown={(event) => event.target === dialog.current && dialog.current?.close()}
      aria-labelledby="dialog-title"
    >
      <div class="dialog-head">
        <h2 id="dialog-title">{title}</h2>
        <Button icon="close" kind="plain" label="Close" onClick={() => dialog.current?.close()} />
      </div>
      <div class="dialog-body">{children}</div>
    </dialog>
  );
}

/** A field with its name above and a word on it below. */
export function Field({ label, hint, children }: Children & { label: string; hint?: string }) {
  return (
    <label class="field">
      <span class="field-name">{label}</span>
      {children}
      {hint !== undefined && <span class="hint">{hint}</span>}
    </label>
  );
}

/** The time now, anew each second. */
export function useNow(): number {
  const [now_ms, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now_ms;
}
