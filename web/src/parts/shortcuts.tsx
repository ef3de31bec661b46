import { useEffect } from 'preact/hooks';
import { goTo, pages } from '../state/route.ts';

/** How long the second key may come after `g`. */
const second_ms = 1200;

/** Keys that act wherever nobody types. */
export function useShortcuts(onHelp: () => void): void {
  useEffect(() => {
    let going_ms = 0;
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector('dialog[open]')) return;
      const target = pages.find(({ key }) => key === event.key);
      if (target && performance.now() - going_ms < second_ms) {
        event.preventDefault();
        going_ms = 0;
        goTo(target.name);
      } else if (event.key === 'g') going_ms = performance.now();
      else if (event.key === '?') onHelp();
      else if (event.key === '/') focusFirst(event);
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  }, [onHelp]);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

function focusFirst(event: KeyboardEvent): void {
  const field = document.querySelector<HTMLElement>('[data-slash]');
  if (!field) return;
  event.preventDefault();
  field.focus();
}

export function Shortcuts() {
  return (
    <dl class="shortcuts">
      {pages.map(({ title, key }) => (
        <div key={key}>
          <dt>
            <kbd>g</kbd> <kbd>{key}</kbd>
          </dt>
          <dd>{title}</dd>
        </div>
      ))}
      <div>
        <dt>
          <kbd>/</kbd>
        </dt>
        <dd>The filter of the page; in the chat, the message</dd>
      </div>
      <div>
        <dt>
          <kbd>Enter</kbd>
        </dt>
        <dd>
          Send the message; <kbd>Shift</kbd> <kbd>Enter</kbd> begins a line
        </dd>
      </div>
      <div>
        <dt>
          <kbd>Esc</kbd>
        </dt>
        <dd>Stop the answer; close a window</dd>
      </div>
      <div>
        <dt>
          <kbd>?</kbd>
        </dt>
        <dd>This list</dd>
      </div>
    </dl>
  );
}
